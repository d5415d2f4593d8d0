package bench

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

func TestTransferOf(t *testing.T) {
	const n = 400_000
	for _, scale := range []int{1, 3, 100} {
		var (
			tellers  = make([]int, TellersPerBranch*scale+1)
			branches = make([]int, scale+1)
			accounts = make([]int, scale+1) // by branch
			deltas   = map[int]int{}
			least    = AccountsPerBranch*scale + 1
			most     int
		)
		for i := range uint64(n) {
			m := transferOf(i, scale)
			if m != transferOf(i, scale) {
				t.Fatalf("operation %d differs from itself", i)
			}
			if m.Account != accountOf(i, scale) {
				t.Fatalf("select and tpcb differ in the account of operation %d", i)
			}
			tellers[m.Teller]++
			branches[m.Branch]++
			accounts[(m.Account-1)/AccountsPerBranch+1]++
			deltas[m.Delta]++
			least, most = min(least, m.Account), max(most, m.Account)
		}
		if tellers[0] != 0 || branches[0] != 0 || least < 1 || most > AccountsPerBranch*scale {
			t.Errorf("scale %d: a number out of range", scale)
		}
		even := func(name string, counts []int) {
			for i, c := range counts[1:] {
				want := float64(n) / float64(len(counts)-1)
				if d := float64(c) - want; d*d > 36*want { // six standard deviations
					t.Errorf("scale %d: %s %d came %d times, want about %.0f", scale, name, i+1, c, want)
				}
			}
		}
		even("teller", tellers)
		even("branch", branches)
		even("account of branch", accounts)
		if scale == 1 && (least > 100 || most < AccountsPerBranch-100) {
			t.Errorf("accounts from %d to %d", least, most)
		}
		if len(deltas) != 2*maxDelta+1 || deltas[-maxDelta] == 0 || deltas[maxDelta] == 0 {
			t.Errorf("scale %d: %d deltas, want the %d from -5000 to 5000", scale, len(deltas), 2*maxDelta+1)
		}
	}
}

func TestBetween(t *testing.T) {
	for _, c := range []struct {
		from, to int
		random   uint64
		want     int
	}{{1, 1, 0, 1}, {1, 1, 1<<64 - 1, 1}, {1, 10, 0, 1}, {1, 10, 1<<64 - 1, 10}, {-5000, 5000, 0, -5000}, {-5000, 5000, 1<<64 - 1, 5000}, {-5000, 5000, 1 << 63, 0}} {
		if got := between(c.from, c.to, c.random); got != c.want {
			t.Errorf("between(%d, %d, %#x) = %d, want %d", c.from, c.to, c.random, got, c.want)
		}
	}
}

// bankLog notes what a workload asks of a bank.
type bankLog struct {
	Store
	calls []string
}

var errBank = errors.New("closed for today")

func (b *bankLog) Load(_ context.Context, run string, scale int) error {
	b.calls = append(b.calls, fmt.Sprint("load ", run, " ", scale))
	return nil
}

func (b *bankLog) Transfer(_ context.Context, t Transfer, simple bool) error {
	b.calls = append(b.calls, fmt.Sprint("transfer ", t == transferOf(7, 2), " ", simple))
	return errBank
}

func (b *bankLog) Balance(_ context.Context, account int) (int, error) {
	b.calls = append(b.calls, fmt.Sprint("balance ", account == accountOf(7, 2)))
	return 1, errBank
}

func TestBankWorkloads(t *testing.T) {
	for name, want := range map[string]string{"tpcb": "transfer true false", "simple-update": "transfer true true", "select": "balance true"} {
		w := findWorkload(name)
		if w == nil || !w.transacts() {
			t.Fatalf("%s is no workload of pgbench", name)
		}
		b, p := &bankLog{}, &Params{Run: "r", Scale: 2}
		if err := w.Load(t.Context(), b, p); err != nil {
			t.Error(err)
		}
		errs := make([]error, 1)
		w.Op(b, p, 1)(t.Context(), 7, errs)
		if errs[0] != errBank || len(b.calls) != 2 || b.calls[0] != "load r 2" || b.calls[1] != want {
			t.Errorf("%s: %q, %v", name, b.calls, errs)
		}
	}
}

type stateError string

func (e stateError) Error() string    { return "FATAL: something (SQLSTATE " + string(e) + ")" }
func (e stateError) SQLState() string { return string(e) }

func TestKindOfState(t *testing.T) {
	for state, want := range map[string]string{"53300": "maxclients", "28P01": "auth", "28000": "auth", "42501": "noperm", "25006": "readonly",
		"53100": "oom", "53200": "oom", "57P01": "reset", "57P02": "reset", "57P03": "loading", "57014": "timeout", "55P03": "timeout",
		"42P01": "unsupported", "0A000": "unsupported", "08006": "reset", "08P01": "protocol", "3D000": "other", "40001": "other", "40P01": "other", "": "other"} {
		if got := Kind(fmt.Errorf("update account: %w", stateError(state))); got != want {
			t.Errorf("SQLSTATE %s is %s, want %s", state, got, want)
		}
	}
	for _, s := range states {
		found := false
		for _, k := range Kinds {
			found = found || k == s.kind
		}
		if !found {
			t.Errorf("%s is no kind", s.kind)
		}
	}
}
