package compare

import "math"

// interval is the 95% confidence interval of the factor between b and a, both sorted and above 0; false where there are
// too few of them. Of all n*m differences of logarithms it leaves out the k lowest and the k highest, k being the
// greatest number for which the U statistic is below k with a chance of at most 2.5% if the two are alike.
func interval(a, b []float64) (lo, hi float64, ok bool) {
	k := below(len(a), len(b))
	if k < 1 {
		return 0, 0, false
	}
	la, lb := logs(a), logs(b)
	return math.Exp(kth(la, lb, k)), math.Exp(kth(la, lb, len(a)*len(b)-k+1)), true
}

func logs(vs []float64) []float64 {
	out := make([]float64, len(vs))
	for i, v := range vs {
		out[i] = math.Log(v)
	}
	return out
}

// exact is up to which size of both samples U's distribution is computed and not taken for normal.
const exact = 20

// below is the greatest k for which P(U < k) <= 2.5%. In how many ways U can be u is the coefficient of q^u in the Gaussian
// binomial coefficient of n+m over n, the product of (1 - q^(m+i)) / (1 - q^i) for i from 1 to n (Mann, Whitney: On a test
// of whether one of two random variables is stochastically larger than the other, Annals of Mathematical Statistics 18,
// 1947).
func below(n, m int) int {
	const tail = Alpha / 2
	if n > exact || m > exact {
		mean, deviation := float64(n)*float64(m)/2, math.Sqrt(float64(n)*float64(m)*float64(n+m+1)/12)
		return int(math.Floor(mean + 0.5 - 1.959964*deviation)) // half: of the correction for continuity
	}
	ways := make([]float64, n*m+1)
	ways[0] = 1
	for i := 1; i <= n; i++ {
		for u := len(ways) - 1; u >= m+i; u-- {
			ways[u] -= ways[u-m-i]
		}
		for u := i; u < len(ways); u++ {
			ways[u] += ways[u-i]
		}
	}
	total, sum := 0.0, 0.0
	for _, w := range ways {
		total += w
	}
	k := 0
	for ; sum+ways[k] <= tail*total; k++ {
		sum += ways[k]
	}
	return k
}

// kth is the k-th smallest, from 1 on, of all differences b - a, both sorted. There may be millions, so it halves the
// range of their values and counts those below, until it is smaller than can be told, and then takes the next difference
// at or above.
func kth(a, b []float64, k int) float64 {
	lo, hi := b[0]-a[len(a)-1], b[len(b)-1]-a[0]
	atMost := func(d float64) (n int) { // how many differences are at most d
		j := 0
		for _, v := range a {
			for j < len(b) && b[j]-v <= d {
				j++
			}
			n += j
		}
		return n
	}
	if atMost(lo) >= k {
		return lo
	}
	for range 60 { // invariant: atMost(lo) < k <= atMost(hi)
		mid := lo + (hi-lo)/2
		if mid <= lo || mid >= hi {
			break
		}
		if atMost(mid) >= k {
			hi = mid
		} else {
			lo = mid
		}
	}
	return hi
}
