package diagnose

import "time"

// A Background is work that goes on between requests, to find out what of its time it gets: on a platform that takes the
// CPU away after a response it stands still.
type Background struct {
	quit, ended chan struct{}
	lost, wall  time.Duration // read once ended is closed
}

const (
	backgroundPeriod = 20 * time.Millisecond
	backgroundWork   = 2 * time.Millisecond  // of each period
	backgroundSlack  = 10 * time.Millisecond // by which a timer may be late on any machine
	backgroundLeast  = 200 * time.Millisecond
	backgroundMost   = 2 * time.Minute // after which it ends by itself
)

// StartBackground starts the work. Its caller calls Stop.
func StartBackground() *Background {
	b := &Background{quit: make(chan struct{}), ended: make(chan struct{})}
	go b.work()
	return b
}

// Stop ends the work and returns the share of its time that it got, from 0 to 1; false where it was too short to say.
func (b *Background) Stop() (share float64, ok bool) {
	close(b.quit)
	<-b.ended
	if b.wall < backgroundLeast {
		return 0, false
	}
	return 1 - float64(b.lost)/float64(b.wall), true
}

func (b *Background) work() {
	defer close(b.ended)
	timer := time.NewTimer(backgroundPeriod)
	defer timer.Stop()
	began := time.Now()
	for last := began; last.Sub(began) < backgroundMost; {
		over := false
		select {
		case <-b.quit:
			over = true
		case <-timer.C:
			for until := time.Now().Add(backgroundWork); time.Now().Before(until); {
			}
			timer.Reset(backgroundPeriod)
		}
		now := time.Now()
		if late := now.Sub(last) - backgroundPeriod - backgroundWork - backgroundSlack; late > 0 {
			b.lost += late
		}
		last = now
		b.wall = now.Sub(began)
		if over {
			return
		}
	}
}
