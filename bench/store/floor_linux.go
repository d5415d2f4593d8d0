package store

import (
	"io"
	"net"
	"os"
	"syscall"
	"time"
	"unsafe"
)

// newLink takes over conn. A connection that is alone gets a blocking descriptor: a thread that sleeps in read wakes
// sooner than a goroutine that the runtime's poller has to hand to a thread (40 us against 50 us a round trip on
// loopback). Among many it is the other way round: the poller finds several that are ready at once.
func newLink(conn net.Conn, timeout time.Duration, alone bool) (link, error) {
	tcp, ok := conn.(*net.TCPConn)
	switch {
	case !ok:
		return &stream{conn: conn, bound: bound{timeout: timeout}}, nil
	case alone:
		return newBlocking(tcp, timeout)
	}
	return newPolled(tcp, timeout)
}

// A polled link waits in the runtime's poller and writes just before it does, under the one lock of its descriptor.
type polled struct {
	conn  *net.TCPConn
	raw   syscall.RawConn
	bound bound
	step  func(fd uintptr) bool // a field, so that the closure is allocated once

	out, in []byte
	flushed bool // some of what the next read answers was written before it
	n       int
	err     error
}

func newPolled(conn *net.TCPConn, timeout time.Duration) (*polled, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	l := &polled{conn: conn, raw: raw, bound: bound{timeout: timeout}}
	l.step = l.exchange
	return l, nil
}

// send keeps p for the read that follows.
func (l *polled) send(p []byte, more bool) error {
	if err := l.bound.renew(l.conn); err != nil {
		return err
	}
	l.out = p
	if more {
		return l.flush()
	}
	return nil
}

// flush writes what is kept, waiting for room in the socket's buffer.
func (l *polled) flush() error {
	_, err := l.conn.Write(l.out)
	l.out, l.flushed = nil, true
	return err
}

func (l *polled) read(p []byte) (int, error) {
	for {
		l.in, l.n, l.err = p, 0, nil
		err := l.raw.Read(l.step)
		if err == nil {
			err = l.err
		}
		if err != nil || len(l.out) == 0 {
			l.flushed = false
			return l.n, err
		}
		if err := l.flush(); err != nil {
			return 0, err
		}
	}
}

// exchange is what the poller calls until it returns true, waiting in between for the socket to become readable.
func (l *polled) exchange(fd uintptr) bool {
	if len(l.out) > 0 {
		n, err := nonblocking(syscall.SYS_WRITE, fd, l.out)
		if err != nil && err != syscall.EAGAIN {
			l.err = os.NewSyscallError("write", err)
			return true
		}
		if l.out = l.out[n:]; len(l.out) > 0 {
			return true
		}
		if !l.flushed {
			// The reply can't be there yet. To wait at once saves a read that fails; one that arrives
			// meanwhile is not lost, since the poller was made ready before the write. Where part of the
			// batch had been written before, its replies may fill the socket and nothing new arrive.
			return false
		}
	}
	n, err := nonblocking(syscall.SYS_READ, fd, l.in)
	switch {
	case err == syscall.EAGAIN:
		return false
	case err != nil:
		l.err = os.NewSyscallError("read", err)
	case n == 0:
		l.err = io.EOF
	}
	l.n = n
	return true
}

// nonblocking performs a read or write on a descriptor that never blocks, without telling the scheduler. Told, the
// scheduler would have another thread take over the processor while the call lasts, which for a call that returns in a few
// microseconds costs more than the call, a fifth to a third of an operation.
func nonblocking(call, fd uintptr, p []byte) (int, error) {
	for {
		n, _, errno := syscall.RawSyscall(call, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
		switch errno {
		case 0:
			return int(n), nil
		case syscall.EINTR:
			continue
		}
		return 0, errno
	}
}

func (l *polled) shut()  { l.conn.Close() }
func (l *polled) close() { l.conn.Close() }

// A blocking link sleeps in the system calls themselves.
type blocking struct {
	file    *os.File // owns fd
	fd      int
	timeout time.Duration
	reads   int       // since the last send
	until   time.Time // set at the second of them
}

func newBlocking(conn *net.TCPConn, timeout time.Duration) (*blocking, error) {
	file, err := conn.File() // a duplicate: closing conn takes the socket out of the poller
	if err != nil {
		return nil, err
	}
	conn.Close()
	l := &blocking{file: file, fd: int(file.Fd()), timeout: timeout}
	limit := syscall.NsecToTimeval(timeout.Nanoseconds())
	for _, err := range []error{
		syscall.SetNonblock(l.fd, false),
		syscall.SetsockoptTimeval(l.fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &limit),
		syscall.SetsockoptTimeval(l.fd, syscall.SOL_SOCKET, syscall.SO_SNDTIMEO, &limit),
	} {
		if err != nil {
			file.Close()
			return nil, os.NewSyscallError("setsockopt", err)
		}
	}
	return l, nil
}

func (l *blocking) send(p []byte, _ bool) error {
	l.reads = 0
	for len(p) > 0 {
		n, err := ignoringEINTR(syscall.Write, l.fd, p)
		if err != nil {
			return blockingError("write", err)
		}
		p = p[n:]
	}
	return nil
}

// read is bounded by the socket's own limit; only a reply that takes several reads needs a look at the clock, lest a
// server that sends a byte now and then holds it for good.
func (l *blocking) read(p []byte) (int, error) {
	switch l.reads++; {
	case l.reads == 2:
		l.until = time.Now().Add(l.timeout)
	case l.reads > 2 && time.Now().After(l.until):
		return 0, errTimeout("read")
	}
	n, err := ignoringEINTR(syscall.Read, l.fd, p)
	if err != nil {
		return 0, blockingError("read", err)
	}
	return n, nil
}

// shut leaves the descriptor open: closed, its number could be another's by the time the thread that sleeps wakes.
func (l *blocking) shut()  { syscall.Shutdown(l.fd, syscall.SHUT_RDWR) }
func (l *blocking) close() { l.file.Close() }

func blockingError(call string, err error) error {
	if err == syscall.EAGAIN { // the time that the socket was given is over
		return errTimeout(call)
	}
	return os.NewSyscallError(call, err)
}

func ignoringEINTR(call func(int, []byte) (int, error), fd int, p []byte) (int, error) {
	for {
		n, err := call(fd, p)
		if err != syscall.EINTR {
			return n, err
		}
	}
}
