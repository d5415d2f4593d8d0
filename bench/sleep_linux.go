package bench

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// newSleeper sleeps on a timer of the kernel that wakes the runtime as a reply from the network does: some 0.03 ms late,
// without a thread that waits. (A thread in clock_nanosleep is as precise, takes twice the CPU, and on a machine of one
// CPU keeps it from all others until the runtime notices.)
func newSleeper() sleeper {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return timers()
	}
	f := os.NewFile(uintptr(fd), "timerfd")
	conn, err := f.SyscallConn()
	if err != nil || f.SetDeadline(time.Time{}) != nil { // not what the poller takes
		f.Close()
		return timers()
	}
	var (
		ns    int64
		armed bool
	)
	// Armed inside Read, after it has forgotten earlier wake-ups: none can be missed. Arming again also forgets an
	// expiry that was not read.
	wait := func(uintptr) bool {
		if armed {
			return true
		}
		armed = true
		spec := unix.ItimerSpec{Value: unix.NsecToTimespec(ns)}
		return unix.TimerfdSettime(fd, 0, &spec, nil) != nil
	}
	sleep := func(d time.Duration) {
		if d <= 0 {
			return
		}
		ns, armed = int64(d), false
		if err := conn.Read(wait); err != nil {
			time.Sleep(d)
		}
	}
	return sleeper{sleep, func() { f.Close() }, true}
}
