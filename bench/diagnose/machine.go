package diagnose

import (
	"context"
	"os"
	"runtime"
	"time"

	"nsop/bench"
	"nsop/bench/vantage"
)

// A Vantage is where this process runs, and what that costs whatever the store.
type Vantage struct {
	vantage.Info
	CPUPercent        *bench.Figure `json:"cpu_percent"`         // of a core that a busy loop got; 100 is all of it
	Stalls            int           `json:"stalls"`              // times that it did not run for a millisecond or more
	LongestStallNS    int64         `json:"longest_stall_ns"`    // the longest of its gaps
	SyscallNS         int64         `json:"syscall_ns"`          // what a system call costs that does nothing
	WakeupNS          int64         `json:"wakeup_ns"`           // what it takes to wake another thread
	ClockNS           int64         `json:"clock_ns"`            // what it costs to ask the time
	ClockResolutionNS int64         `json:"clock_resolution_ns"` // the least step of the clock that was seen
	GCCycles          int64         `json:"gc_cycles"`           // during the diagnosis
	GCPauseNS         int64         `json:"gc_pause_ns"`         // to within a factor of about two
	ThrottledNS       *int64        `json:"throttled_ns"`        // kept from running by the CPU quota, during the diagnosis
	BackgroundPercent *bench.Figure `json:"background_percent"`  // of its time that work after the previous response got
}

// stallAt is the least gap between two looks at the clock that is a stall and not the loop itself.
const stallAt = 20 * time.Microsecond

// measure takes some longer than d.
func (v *Vantage) measure(ctx context.Context, d time.Duration) {
	var stalled time.Duration
	resolution := time.Hour
	loops := 0
	began := time.Now()
	for last := began; last.Sub(began) < d && (loops%4096 != 0 || ctx.Err() == nil); loops++ {
		now := time.Now()
		gap := now.Sub(last)
		last = now
		if gap > 0 {
			resolution = min(resolution, gap)
		}
		if gap < stallAt {
			continue
		}
		stalled += gap
		v.LongestStallNS = max(v.LongestStallNS, int64(gap))
		if gap >= time.Millisecond {
			v.Stalls++
		}
	}
	wall := time.Since(began)
	v.CPUPercent = bench.NewFigure(100 * (1 - float64(stalled)/float64(wall)))
	v.ClockResolutionNS = int64(resolution)
	v.ClockNS = int64(wall-stalled) / int64(max(loops, 1))

	const calls = 2000
	v.SyscallNS = int64(least(5, func() { // the least, since stalls have a figure of their own
		for range calls {
			os.Getppid()
		}
	}) / calls)
	v.WakeupNS = int64(wakeup())
}

// least returns the shortest time that f took in n times.
func least(n int, f func()) time.Duration {
	best := time.Duration(-1)
	for range n {
		started := time.Now()
		f()
		if took := time.Since(started); best < 0 || took < best {
			best = took
		}
	}
	return best
}

// wakeup is half of what two threads take to wake each other.
func wakeup() time.Duration {
	const rounds = 200
	there, back := make(chan struct{}), make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for range there {
			back <- struct{}{}
		}
	}()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	took := least(3, func() {
		for range rounds {
			there <- struct{}{}
			<-back
		}
	}) / (2 * rounds)
	close(there)
	<-ended
	return took
}

// A pair is a connection between two goroutines of this process, without a network.
type pair struct {
	here, there *os.File
	ended       chan struct{}
	buf         [128]byte
}

// exchange sends a message and receives its answer: a write, a wake-up and a read on either side.
func (p *pair) exchange() error {
	if _, err := p.here.Write(p.buf[:100]); err != nil {
		return err
	}
	_, err := p.here.Read(p.buf[:])
	return err
}

func (p *pair) answer() {
	defer close(p.ended)
	defer p.there.Close()
	var buf [128]byte
	for {
		n, err := p.there.Read(buf[:])
		if err != nil {
			return
		}
		if _, err := p.there.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (p *pair) close() {
	p.here.Close() // the other side reads the end
	<-p.ended
}
