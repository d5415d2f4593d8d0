package bench

import (
	"context"
	"fmt"
	"math/bits"
)

// The sizes of pgbench's tables for each unit of scale, and how much one transaction moves at most.
const (
	AccountsPerBranch = 100_000
	TellersPerBranch  = 10
	maxDelta          = 5000
)

// transferOf returns what operation n moves: each number is uniform in pgbench's range, both ends included, and depends
// on nothing but n.
func transferOf(n uint64, scale int) Transfer {
	return Transfer{
		Account: accountOf(n, scale),
		Branch:  between(1, scale, mix(4*n+1)),
		Teller:  between(1, TellersPerBranch*scale, mix(4*n+2)),
		Delta:   between(-maxDelta, maxDelta, mix(4*n+3)),
	}
}

func accountOf(n uint64, scale int) int { return between(1, AccountsPerBranch*scale, mix(4*n)) }

// between maps random, which is uniform over all 64 bits, to from to, both included. It multiplies in place of dividing
// (Lemire: Fast Random Integer Generation in an Interval, 2019); what is left of a bias is below 1 in 10^12.
func between(from, to int, random uint64) int {
	high, _ := bits.Mul64(random, uint64(to-from+1))
	return from + int(high)
}

// loadBank makes pgbench's tables in the schema of the run.
func loadBank(ctx context.Context, s Store, p *Params) error {
	if err := s.(Bank).Load(ctx, p.Run, p.Scale); err != nil { // every store of such a kind is one
		return fmt.Errorf("pgbench's tables: %w", err)
	}
	return nil
}

func opTPCB(s Store, p *Params, _ int) Op { return opTransfer(s, p, false) }

func opSimpleUpdate(s Store, p *Params, _ int) Op { return opTransfer(s, p, true) }

func opTransfer(s Store, p *Params, simple bool) Op {
	bank := s.(Bank)
	return func(ctx context.Context, n uint64, errs []error) {
		errs[0] = bank.Transfer(ctx, transferOf(n, p.Scale), simple)
	}
}

func opSelect(s Store, p *Params, _ int) Op {
	bank := s.(Bank)
	return func(ctx context.Context, n uint64, errs []error) {
		_, errs[0] = bank.Balance(ctx, accountOf(n, p.Scale))
	}
}
