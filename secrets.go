package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"nsop/gcp"
)

// secretsTimeout bounds all that is read from Secret Manager at start.
const secretsTimeout = 15 * time.Second

// endpointVariable is how Google's own tools are told of another endpoint of Secret Manager.
const endpointVariable = "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER"

// secrets are the variables whose value is in Secret Manager.
type secrets struct {
	ctx    context.Context // bounds the reading
	env    func(string) string
	reader gcp.SecretReader

	mu       sync.Mutex
	values   map[string]string // by URL
	urls     map[string]string // of the variables read, by name
	versions []string          // what was read, as a line for the log says it
	err      error             // of the first that could not be read
}

// newSecrets reads nothing yet: most environments hold no secret.
func newSecrets(ctx context.Context, getenv func(string) string) *secrets {
	return &secrets{
		ctx: ctx, env: getenv, values: map[string]string{}, urls: map[string]string{},
		reader: gcp.SecretReader{Endpoint: cmp.Or(getenv(endpointVariable), gcp.SecretManager), Tokens: gcp.NewTokens()},
	}
}

// getenv returns the variable, of one that holds sm://... what the secret holds. One that can't be read is empty, and
// explain tells why.
func (s *secrets) getenv(name string) string {
	text := s.env(name)
	if !strings.HasPrefix(text, gcp.SecretPrefix) {
		return text
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if value, ok := s.values[text]; ok || s.err != nil {
		s.urls[name] = text
		return value
	}
	value, version, err := s.reader.Read(s.ctx, text)
	if err != nil {
		s.err = &usageError{name + ": " + err.Error()}
		return ""
	}
	s.values[text], s.urls[name] = value, text
	s.versions = append(s.versions, fmt.Sprintf("%s is %s", name, version))
	return value
}

// explain returns why the configuration failed, if it did: err quotes the value that is wrong, which nobody may see where
// it is a secret.
func (s *secrets) explain(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	if wrong := (*usageError)(nil); errors.As(err, &wrong) {
		name, _, _ := strings.Cut(wrong.text, ":")
		if url := s.urls[name]; url != "" {
			return &usageError{fmt.Sprintf("%s: what %s holds is not a right value", name, url)}
		}
	}
	return err
}
