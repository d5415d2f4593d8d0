//go:build unix

package diagnose

import (
	"os"
	"syscall"
)

// newPair returns a pair that waits in the runtime's poller, as sockets do.
func newPair() (*pair, error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	for _, fd := range fds {
		syscall.CloseOnExec(fd)
		if err := syscall.SetNonblock(fd, true); err != nil {
			syscall.Close(fds[0])
			syscall.Close(fds[1])
			return nil, os.NewSyscallError("setnonblock", err)
		}
	}
	p := &pair{here: os.NewFile(uintptr(fds[0]), "here"), there: os.NewFile(uintptr(fds[1]), "there"), ended: make(chan struct{})}
	go p.answer()
	return p, nil
}
