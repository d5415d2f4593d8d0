package bench

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"syscall"
	"testing"
)

func TestKind(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}, "refused"},
		{&net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", IsTimeout: true}}, "dns"},
		{&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, "timeout"},
		{context.DeadlineExceeded, "timeout"},
		{fmt.Errorf("dial: %w", context.Canceled), "canceled"},
		{io.EOF, "reset"}, {syscall.ECONNRESET, "reset"}, {net.ErrClosed, "reset"},
		{fmt.Errorf("tls: %w", x509.UnknownAuthorityError{}), "tls"},
		{errors.New("OOM command not allowed when used memory > 'maxmemory'."), "oom"},
		{fmt.Errorf("load keys: %w", errors.New("READONLY You can't write against a read only replica.")), "readonly"},
		{errors.New("ERR max number of clients reached"), "maxclients"},
		{errors.New("NOAUTH Authentication required."), "auth"}, {errors.New("WRONGPASS invalid"), "auth"},
		{errors.Join(errors.New("first"), errors.New("LOADING Redis is loading the dataset in memory")), "loading"},
		{errors.New("NOPERM this user has no permissions"), "noperm"},
		{errors.New("MOVED 1 127.0.0.1:1"), "moved"},
		{errors.New("ERR unknown command 'ZPOPMIN'"), "unsupported"},
		{errors.New("redis: connection pool timeout"), "pool_timeout"},
		{fmt.Errorf("memcache: %w", errors.New("SERVER_ERROR object too large for cache")), "unsupported"},
		{errors.New("SERVER_ERROR out of memory storing object"), "oom"},
		{errors.New("ERROR Too many open connections"), "maxclients"},
		{errors.New("memcache: connect timeout to 127.0.0.1:11211"), "timeout"},
		{errors.New("CLIENT_ERROR cannot increment or decrement non-numeric value"), "unsupported"},
		{&os.PathError{Op: "write", Path: "bbolt.db", Err: syscall.ENOSPC}, "oom"},
		{fmt.Errorf("load keys: %w", errors.New("database or disk is full (13)")), "oom"},
		{errors.New("database is locked (5) (SQLITE_BUSY)"), "timeout"},
		{ErrMismatch, "mismatch"},
		{&KindError{"oom", "told"}, "oom"},
		{errors.New("anything else"), "other"},
	} {
		if got := Kind(c.err); got != c.want || got != "" && !slices.Contains(Kinds, got) {
			t.Errorf("%v: %q, want %q", c.err, got, c.want)
		}
	}
}
