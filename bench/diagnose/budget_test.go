package diagnose

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestCut(t *testing.T) {
	const us = time.Microsecond
	for _, test := range []struct {
		name                                           string
		m                                              measures
		server, network, sandbox, library, unaccounted int64 // us; -1: nil
	}{
		{"all known", measures{total: 100 * us, floor: 80 * us, echo: 60 * us, sandbox: 10 * us, server: 12 * us, overhead: 5 * us}, 12, 45, 10, 20, 13},
		{"no server", measures{total: 100 * us, floor: 80 * us, echo: 60 * us, sandbox: 10 * us, server: -1, overhead: -1}, -1, 50, 10, 20, 20},
		{"too much", measures{total: 100 * us, floor: 90 * us, echo: 95 * us, sandbox: 10 * us, server: 10 * us, overhead: 0}, 10, 70, 10, 10, 0},
		{"server too much", measures{total: 20 * us, floor: 20 * us, echo: 10 * us, sandbox: 5 * us, server: 50 * us, overhead: 0}, 20, 0, 0, 0, 0},
		{"in process", measures{total: 20 * us, floor: 0, echo: -1, sandbox: -1, server: -1, overhead: -1}, -1, -1, -1, 20, 0},
		{"nothing known", measures{total: 20 * us, floor: -1, echo: -1, sandbox: -1, server: -1, overhead: -1}, -1, -1, -1, -1, 20},
	} {
		t.Run(test.name, func(t *testing.T) {
			for i, p := range cut(test.m) {
				want := []int64{test.server, test.network, test.sandbox, test.library, test.unaccounted}[i]
				switch {
				case want < 0 && p.NS != nil:
					t.Errorf("%s is %d, want nil", p.Name, *p.NS)
				case want >= 0 && (p.NS == nil || *p.NS != want*1000):
					t.Errorf("%s is %v, want %d us", p.Name, p.NS, want)
				}
			}
		})
	}
}

// TestCutSums is that the parts sum to the total exactly and none is negative, whatever was measured.
func TestCutSums(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	any := func() time.Duration {
		if random.IntN(5) == 0 {
			return -1
		}
		return time.Duration(random.Int64N(int64(time.Millisecond)))
	}
	for range 20_000 {
		m := measures{total: time.Duration(random.Int64N(int64(time.Millisecond))), floor: any(), echo: any(), sandbox: any(), server: any(), overhead: any()}
		var sum int64
		for _, p := range cut(m) {
			if p.NS == nil {
				continue
			}
			if *p.NS < 0 {
				t.Fatalf("%+v: %s is %d", m, p.Name, *p.NS)
			}
			sum += *p.NS
		}
		if sum != int64(m.total) {
			t.Fatalf("%+v: the parts sum to %d", m, sum)
		}
	}
}
