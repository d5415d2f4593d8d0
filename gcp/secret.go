package gcp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// SecretManager is the endpoint of Secret Manager's REST interface.
const SecretManager = "https://secretmanager.googleapis.com"

// SecretPrefix begins the URL of a secret.
const SecretPrefix = "sm://"

const (
	secretMaxSize = 128 << 10 // bytes of an answer; a secret is at most 64 KiB, in base64
	secretTries   = 4         // an instance that has just started may have no way out yet
	secretPause   = 250 * time.Millisecond
)

var secretURL = regexp.MustCompile(`^sm://(projects/(?:[a-z0-9][a-z0-9.-]{0,99}:)?[a-z0-9][a-z0-9-]{0,62}/secrets/[A-Za-z0-9_-]{1,255})(/versions/(?:[1-9][0-9]{0,18}|[A-Za-z][A-Za-z0-9_-]{0,62}))?$`)

// A SecretReader reads secrets.
type SecretReader struct {
	Endpoint string // [SecretManager] but in tests
	Tokens   *Tokens
}

// Read returns the value of the secret at url, sm://projects/PROJECT/secrets/SECRET[/versions/VERSION], and the full name
// of the version that it is. Without a version that is the latest. Line feeds at the end, which most editors and echo
// leave there, are not part of it. The error is one line, without anything secret.
func (r SecretReader) Read(ctx context.Context, url string) (value, version string, err error) {
	m := secretURL.FindStringSubmatch(url)
	if m == nil {
		return "", "", errors.New("want sm://projects/PROJECT/secrets/SECRET[/versions/VERSION]")
	}
	name := m[1] + cmp.Or(m[2], "/versions/latest")
	for try := range secretTries {
		if try > 0 {
			select {
			case <-time.After(secretPause << (try - 1)):
			case <-ctx.Done():
				return "", "", fmt.Errorf("read secret %s: %w", name, err)
			}
		}
		var again bool
		value, version, again, err = r.access(ctx, name)
		if err == nil {
			return value, version, nil
		}
		if !again {
			break
		}
	}
	return "", "", fmt.Errorf("read secret %s: %w", name, err)
}

// access asks once; again tells whether asking again may help.
func (r SecretReader) access(ctx context.Context, name string) (value, version string, again bool, err error) {
	token, err := r.Tokens.Token(ctx)
	if err != nil {
		return "", "", false, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(r.Endpoint, "/")+"/v1/"+name+":access", nil)
	if err != nil {
		return "", "", false, oneLine{err}
	}
	request.Header.Set("Authorization", "Bearer "+token)
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(request)
	if err != nil {
		return "", "", true, oneLine{err}
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, secretMaxSize))
	if err != nil {
		return "", "", true, oneLine{err}
	}
	if response.StatusCode != http.StatusOK {
		again = response.StatusCode == http.StatusTooManyRequests || response.StatusCode >= 500
		return "", "", again, oneLine{refusal(response.Status, body)}
	}
	value, version, err = parseSecret(body)
	return value, version, false, err
}

// refusal is what Google's API says of a request that failed.
func refusal(status string, body []byte) error {
	var answer struct {
		Error struct{ Message, Status string }
	}
	if json.Unmarshal(body, &answer) != nil || answer.Error.Message == "" {
		return fmt.Errorf("the server answers %s", status)
	}
	if answer.Error.Status == "PERMISSION_DENIED" {
		return fmt.Errorf("%s (the service account needs roles/secretmanager.secretAccessor)", answer.Error.Message)
	}
	return errors.New(answer.Error.Message)
}

// parseSecret returns what an answer of Secret Manager holds, and the name of the version.
func parseSecret(body []byte) (value, version string, err error) {
	var answer struct {
		Name    string
		Payload struct {
			Data       []byte
			DataCRC32C *string
		}
	}
	if json.Unmarshal(body, &answer) != nil || answer.Payload.Data == nil {
		return "", "", errors.New("the answer holds no secret")
	}
	data := answer.Payload.Data
	if sum := answer.Payload.DataCRC32C; sum != nil {
		if *sum != strconv.FormatUint(uint64(crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))), 10) {
			return "", "", errors.New("the answer is damaged: its checksum is another")
		}
	}
	value = strings.TrimRight(string(data), "\r\n")
	if value == "" {
		return "", "", errors.New("the secret is empty")
	}
	return value, answer.Name, nil
}
