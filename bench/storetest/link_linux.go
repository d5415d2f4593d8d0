package storetest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// LinkOptions are what happens to packets.
type LinkOptions struct {
	Delay time.Duration // of each packet: a round trip takes twice as long
	// Drop says whether a packet, from its IPv4 header on, is lost. One goroutine calls it.
	Drop func(packet []byte) bool
}

// A NetworkLink is a network of its own between a client and a server that both are on this machine. The kernel's whole
// way from socket to socket is on it, so that a SYN is delayed or lost as any packet.
type NetworkLink struct {
	Local  string // the address that a server listens on
	Remote string // the address that a client connects to
}

// Link makes a network, which ends with the test. It needs to be root, with a TUN device.
//
// Packets that are sent to Remote come to this process, which changes source and destination and sends them back: they
// arrive at Local as if from Remote. The checksums hold, since a sum does not depend on the order of what is added.
func Link(t testing.TB, o LinkOptions) *NetworkLink {
	t.Helper()
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("this test needs a TUN device, and to be root: open /dev/net/tun: %v", err)
	}
	request, err := unix.NewIfreq("")
	if err == nil {
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		unix.Close(fd)
		t.Fatalf("this test needs the capability CAP_NET_ADMIN: make TUN device: %v", err)
	}
	file := os.NewFile(uintptr(fd), "tun")
	net := 4 * rand.N(1<<14)
	prefix := fmt.Sprintf("10.%d.%d.", 200+rand.N(50), net>>8)
	l := &NetworkLink{Local: fmt.Sprint(prefix, net&0xff+1), Remote: fmt.Sprint(prefix, net&0xff+2)}
	for _, args := range [][]string{
		{"addr", "add", l.Local + "/30", "dev", request.Name()},
		{"link", "set", request.Name(), "up"},
	} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			file.Close()
			t.Fatalf("this test needs the command ip and CAP_NET_ADMIN: ip %v: %v: %s", args, err, out)
		}
	}
	type packet struct {
		due  time.Time
		data []byte
	}
	queue := make(chan packet, 4096)
	var wait sync.WaitGroup
	wait.Go(func() {
		defer close(queue)
		buf := make([]byte, 64<<10)
		for {
			n, err := file.Read(buf)
			if err != nil {
				return
			}
			data := append([]byte{}, buf[:n]...)
			if n < 20 || data[0]>>4 != 4 || o.Drop != nil && o.Drop(data) {
				continue
			}
			for i := range 4 {
				data[12+i], data[16+i] = data[16+i], data[12+i]
			}
			select {
			case queue <- packet{time.Now().Add(o.Delay), data}:
			default: // the queue of a router is no longer either
			}
		}
	})
	wait.Go(func() {
		for p := range queue {
			time.Sleep(time.Until(p.due))
			file.Write(p.data) // what is lost here is sent again
		}
	})
	t.Cleanup(func() {
		file.Close()
		wait.Wait()
	})
	return l
}

// IsSYN tells whether a packet asks for a TCP connection, and from which port.
func IsSYN(packet []byte) (port int, ok bool) {
	header := int(packet[0]&0xf) * 4
	if packet[9] != unix.IPPROTO_TCP || len(packet) < header+20 {
		return 0, false
	}
	const syn, ack = 0x02, 0x10
	return int(packet[header])<<8 | int(packet[header+1]), packet[header+13]&(syn|ack) == syn
}
