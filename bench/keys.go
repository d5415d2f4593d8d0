package bench

import (
	"iter"
	"math/rand/v2"
	"strconv"
)

// arenaKeys is the number of keys up to which their names are made ahead (13 MB); above it each operation makes its
// own, which costs some 50 ns and one allocation.
const arenaKeys = 1 << 18

// Keys are the names of a row's keys: prefix and a number of fixed width.
type Keys struct {
	prefix string
	arena  string // all names end to end, where there are few enough
	width  int
	n      uint64
}

// NewKeys returns the names of n keys that begin with prefix.
func NewKeys(prefix string, n int) Keys {
	k := Keys{prefix: prefix, width: len(prefix) + len(strconv.Itoa(n-1)), n: uint64(n)}
	if n <= arenaKeys {
		b := make([]byte, 0, n*k.width)
		for i := range k.n {
			b = k.append(b, i)
		}
		k.arena = string(b)
	}
	return k
}

func (k Keys) append(b []byte, i uint64) []byte {
	b = append(b, k.prefix...)
	digits := strconv.AppendUint(nil, i, 10)
	for range k.width - len(k.prefix) - len(digits) {
		b = append(b, '0')
	}
	return append(b, digits...)
}

// Len is the number of keys.
func (k Keys) Len() uint64 { return k.n }

// Index is the key that operation n works on, chosen uniformly: the same in every run and on every machine.
func (k Keys) Index(n uint64) uint64 {
	if k.n == 1 {
		return 0
	}
	return mix(n) % k.n
}

// At is the name of key i.
func (k Keys) At(i uint64) string {
	if k.arena != "" {
		return k.arena[int(i)*k.width : int(i+1)*k.width]
	}
	return string(k.append(make([]byte, 0, k.width), i))
}

// All yields every name.
func (k Keys) All() iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range k.n {
			if !yield(k.At(i)) {
				return
			}
		}
	}
}

// mix is the finaliser of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014): it
// spreads consecutive numbers over all 64 bits.
func mix(n uint64) uint64 {
	n += 0x9e3779b97f4a7c15
	n = (n ^ n>>30) * 0xbf58476d1ce4e5b9
	n = (n ^ n>>27) * 0x94d049bb133111eb
	return n ^ n>>31
}

// valueKinds is a prime, so that neighbouring keys differ in value whatever the keyspace.
const valueKinds = 251

// Values are the values written: printable, of one size, and different from key to key, so that a value read under
// the wrong key is noticed.
type Values struct {
	text  string
	bytes []byte
	size  int
}

// NewValues returns values of size bytes.
func NewValues(size int) Values {
	const alphabet = "0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[]^_`abcdefghijklmno~"
	r := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, size+valueKinds-1)
	for i := range b {
		b[i] = alphabet[r.Uint64()%uint64(len(alphabet))]
	}
	return Values{string(b), b, size}
}

// Bytes is the value of key i; the caller must not change it.
func (v Values) Bytes(i uint64) []byte {
	from := int(i % valueKinds)
	return v.bytes[from : from+v.size : from+v.size]
}

// At is the value of key i as a string.
func (v Values) At(i uint64) string {
	from := int(i % valueKinds)
	return v.text[from : from+v.size]
}
