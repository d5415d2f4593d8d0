//go:build unix

package diagnose

import (
	"os"
	"syscall"
)

// newPair returns a pair whose reads block their threads, as the floor's do.
func newPair() (*pair, error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	p := &pair{here: os.NewFile(uintptr(fds[0]), "here"), there: os.NewFile(uintptr(fds[1]), "there"), ended: make(chan struct{})}
	go p.answer()
	return p, nil
}
