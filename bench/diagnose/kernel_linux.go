package diagnose

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// kernelTimes returns how often conn, just connected, has sent something again, and the kernel's estimate of its round
// trip; told is false where the socket does not tell.
func kernelTimes(conn net.Conn) (retransmits int, rtt time.Duration, told bool) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return 0, 0, false
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return 0, 0, false
	}
	_ = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return
		}
		// gVisor's socket answers, with nothing in it.
		told = info.Rtt > 0
		retransmits, rtt = int(info.Total_retrans), time.Duration(info.Rtt)*time.Microsecond
	})
	return retransmits, rtt, told
}
