package store

import (
	"context"
	"errors"
	"net/url"

	"nsop/bench"
	"nsop/gcp"
)

// credentials are who to be on a connection that is opened now.
type credentials func(ctx context.Context) (user, password string, err error)

// login returns what a new connection of e authenticates with, both empty where it does not. Of auth=iam that is a token
// that has not expired: connections that exist outlive theirs.
func (e endpoint) login(ctx context.Context) (user, password string, err error) {
	if e.credentials == nil {
		return e.user, e.password, nil
	}
	return e.credentials(ctx)
}

// iam returns the credentials of Memorystore's IAM authentication: user default, and as the password an access token of
// the service account that this process runs as, which needs roles/memorystore.dbConnectionUser.
func iam(tokens *gcp.Tokens) credentials {
	return func(ctx context.Context) (string, string, error) {
		token, err := tokens.Token(ctx)
		if err != nil {
			return "", "", at("auth", &tokenError{err})
		}
		return "default", token, nil
	}
}

// A tokenError says that there is no token to authenticate with, which the store has no part in.
type tokenError struct{ err error }

func (e *tokenError) Error() string { return "auth=iam: " + e.err.Error() }
func (e *tokenError) As(target any) bool {
	told, ok := target.(**bench.KindError)
	if ok {
		*told = &bench.KindError{Kind: "auth", Text: e.Error()}
	}
	return ok
}

// takeIAM takes auth=iam out of u's query, and tells whether it was there.
func takeIAM(u *url.URL) (bool, error) {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return false, errors.New("the query does not parse")
	}
	values, ok := query["auth"]
	if !ok {
		return false, nil
	}
	if len(values) != 1 || values[0] != "iam" {
		return false, errors.New("auth: want iam, once")
	}
	query.Del("auth")
	u.RawQuery = query.Encode()
	return true, nil
}
