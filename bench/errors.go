package bench

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
)

// Kinds are the kinds of error that an operation can end with.
var Kinds = []string{"timeout", "refused", "reset", "dns", "tls", "auth", "noperm", "loading", "readonly", "oom", "moved",
	"maxclients", "pool_timeout", "protocol", "mismatch", "unsupported", "canceled", "other"}

// A KindError is an error whose kind has been told already.
type KindError struct{ Kind, Text string }

func (e *KindError) Error() string { return e.Text }

// replies tells the kind of a server's error by how its text begins after ERR, or of a library's error that has no type.
var replies = []struct{ prefix, kind string }{
	{"LOADING", "loading"},
	{"READONLY", "readonly"},
	{"OOM", "oom"},
	{"NOAUTH", "auth"},
	{"WRONGPASS", "auth"},
	{"invalid password", "auth"},
	{"AUTH ", "auth"},
	{"Client sent AUTH", "auth"},
	{"NOPERM", "noperm"},
	{"MOVED", "moved"},
	{"ASK ", "moved"},
	{"TRYAGAIN", "moved"}, // of several keys, some have moved
	{"CROSSSLOT", "unsupported"},
	{"max number of clients", "maxclients"},
	{"unknown command", "unsupported"},
	{"unknown subcommand", "unsupported"},
	{"redis: connection pool timeout", "pool_timeout"},
	{"redigo: connection pool exhausted", "pool_timeout"},
	{"redigo: unexpected", "protocol"},
	{"redis: can't parse", "protocol"},
	{"redis: invalid reply", "protocol"},
	{"protocol", "protocol"},
	{"tls:", "tls"},
	{"x509:", "tls"},
	{"remote error: tls", "tls"},
	{"driver: bad connection", "reset"},
	{"sql: connection is already closed", "reset"},
	{"sql: database is closed", "reset"},
	{"conn closed", "reset"},
	{"received unknown message type", "protocol"},    // rueidis
	{"SERVER_ERROR object too large", "unsupported"}, // memcached: beyond the limit of one item
	{"SERVER_ERROR out of memory", "oom"},
	{"ERROR Too many open connections", "maxclients"},
	{"CLIENT_ERROR", "unsupported"},
	{"memcache: client error", "unsupported"},
	{"memcache: connect timeout", "timeout"},
	{"memcache: corrupt", "protocol"},
	{"database or disk is full", "oom"}, // SQLite
	{"database is locked", "timeout"},
	{"database table is locked", "timeout"},
	{"attempt to write a readonly database", "readonly"},
	{"redigo: bad response", "protocol"},
	{"redigo: long response", "protocol"},
}

// states tells the kind of an error of a SQL server by how its SQLSTATE begins, the first that fits (PostgreSQL, appendix
// A: error codes).
var states = []struct{ prefix, kind string }{
	{"08P01", "protocol"},
	{"08", "reset"},
	{"28", "auth"},
	{"25006", "readonly"},
	{"42501", "noperm"},
	{"42", "unsupported"},
	{"0A", "unsupported"},
	{"53300", "maxclients"},
	{"53100", "oom"}, // the disk is full
	{"53200", "oom"},
	{"53400", "oom"},
	{"55P03", "timeout"}, // of a lock
	{"57014", "timeout"}, // of a statement
	{"57P01", "reset"},
	{"57P02", "reset"},
	{"57P04", "reset"},
	{"57P05", "reset"},
	{"57P03", "loading"},
}

func stateKind(state string) string {
	for _, s := range states {
		if strings.HasPrefix(state, s.prefix) {
			return s.kind
		}
	}
	return "other"
}

// Kind names the kind of err, one of Kinds. It looks at every error that err wraps.
func Kind(err error) string {
	var (
		told     *KindError
		dns      *net.DNSError
		timeout  net.Error
		alert    tls.AlertError
		record   tls.RecordHeaderError
		verify   *tls.CertificateVerificationError
		unknown  x509.UnknownAuthorityError
		hostname x509.HostnameError
		invalid  x509.CertificateInvalidError
		state    interface{ SQLState() string }
	)
	switch {
	case err == nil:
		return ""
	case errors.As(err, &told):
		return told.Kind
	case errors.As(err, &state):
		return stateKind(state.SQLState())
	case errors.Is(err, ErrMismatch):
		return "mismatch"
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.As(err, &dns):
		return "dns"
	case errors.As(err, &alert), errors.As(err, &record), errors.As(err, &verify), errors.As(err, &unknown),
		errors.As(err, &hostname), errors.As(err, &invalid):
		return "tls"
	}
	if kind := replyKind(err); kind != "" {
		return kind
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, syscall.ETIMEDOUT),
		errors.As(err, &timeout) && timeout.Timeout():
		return "timeout"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return "oom"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.EOF),
		errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed), errors.Is(err, syscall.ECONNABORTED):
		return "reset"
	case errors.Is(err, errors.ErrUnsupported):
		return "unsupported"
	}
	return "other"
}

func replyKind(err error) string {
	if err == nil {
		return ""
	}
	text := strings.TrimPrefix(err.Error(), "ERR ") // which rueidis leaves out
	for _, r := range replies {
		if strings.HasPrefix(text, r.prefix) {
			return r.kind
		}
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return replyKind(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, e := range e.Unwrap() {
			if kind := replyKind(e); kind != "" {
				return kind
			}
		}
	}
	return ""
}

// lost tells whether an error of this kind means that the connection, not the command, failed: the kinds of which
// 100 in a row end a row, and after which a worker waits before it tries again.
func lost(kind string) bool {
	switch kind {
	case "timeout", "refused", "reset", "dns", "tls", "auth", "maxclients", "pool_timeout", "protocol", "other":
		return true
	}
	return false
}
