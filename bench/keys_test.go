package bench

import (
	"strings"
	"testing"
)

func TestKeys(t *testing.T) {
	for _, n := range []int{1, 2, 10, 1000, arenaKeys, arenaKeys + 1} {
		k := NewKeys("nsop:run:key:", n)
		last := k.At(uint64(n - 1))
		if k.At(0) == last && n > 1 || !strings.HasPrefix(last, "nsop:run:key:") || len(k.At(0)) != len(last) {
			t.Errorf("%d keys: first %q, last %q", n, k.At(0), last)
		}
		seen := map[string]bool{}
		if n <= 1000 {
			for name := range k.All() {
				seen[name] = true
			}
			if len(seen) != n {
				t.Errorf("%d keys: %d distinct names", n, len(seen))
			}
		}
	}
	// Above the arena the names must be those that the arena would have.
	few, many := NewKeys("p", arenaKeys), NewKeys("p", arenaKeys+1)
	if few.At(77) != many.At(77) {
		t.Errorf("arena %q, made %q", few.At(77), many.At(77))
	}
}

func TestKeysAreUniform(t *testing.T) {
	const keys, ops = 100, 100_000
	k := NewKeys("p", keys)
	var hits [keys]int
	for n := range uint64(ops) {
		hits[k.Index(n)]++
	}
	var chi float64 // Pearson's statistic, 99 degrees of freedom: below 148.2 with probability 0.999
	for _, h := range hits {
		d := float64(h) - ops/keys
		chi += d * d / (ops / keys)
	}
	if chi > 148.2 {
		t.Errorf("chi square %.1f", chi)
	}
}

func TestValuesDiffer(t *testing.T) {
	for _, size := range []int{1, 8, 100, 5000} {
		v := NewValues(size)
		if len(v.At(0)) != size || len(v.Bytes(250)) != size || string(v.Bytes(7)) != v.At(7) {
			t.Errorf("size %d: got %d and %d", size, len(v.At(0)), len(v.Bytes(250)))
		}
	}
	v := NewValues(100)
	seen := map[string]bool{}
	for i := range uint64(valueKinds) {
		seen[v.At(i)] = true
	}
	if len(seen) != valueKinds {
		t.Errorf("%d distinct values of %d", len(seen), valueKinds)
	}
}
