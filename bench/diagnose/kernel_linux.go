package diagnose

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// kernelTimes returns how often conn, just connected, has sent something again, and the kernel's estimate of its round
// trip; 0 where the socket does not tell.
func kernelTimes(conn net.Conn) (retransmits int, rtt time.Duration) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return 0, 0
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return 0, 0
	}
	_ = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return
		}
		retransmits, rtt = int(info.Total_retrans), time.Duration(info.Rtt)*time.Microsecond
	})
	return retransmits, rtt
}
