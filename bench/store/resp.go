package store

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"

	"nsop/bench"
)

const (
	maxLine  = 64 << 10  // bytes of a line: an error's text, a number
	maxBulk  = 512 << 20 // bytes of a string, which is Redis's own limit
	maxDepth = 16        // of arrays in arrays
	chunk    = 16 << 10  // the least a buffer grows by
)

// A replyError is a server's error reply.
type replyError string

func (e replyError) Error() string { return string(e) }

// A respReader reads replies in RESP2, the protocol of Redis before version 6. The strings of a batch stay in its buffer
// until the next batch begins.
type respReader struct {
	fill func([]byte) (int, error) // reads some bytes, as io.Reader does

	buf   []byte
	r, w  int    // buf[r:w] is read and not yet parsed
	spans []span // of the string replies of this batch
}

// A span is where in the buffer the string of replies[i] lies. It is not a slice, since the buffer moves when it grows.
type span struct{ i, from, to int }

// batch reads len(replies) replies. It returns how many it read, and why not all.
func (r *respReader) batch(replies []bench.Reply) (n int, err error) {
	r.spans = r.spans[:0]
	if r.r != r.w {
		return 0, errors.New("protocol: a reply that nothing asked for")
	}
	r.r, r.w = 0, 0
	for n < len(replies) {
		if err = r.reply(n, &replies[n]); err != nil {
			break
		}
		n++
	}
	for _, s := range r.spans {
		replies[s.i].Bytes = r.buf[s.from:s.to:s.to]
	}
	return n, err
}

// reply reads reply i of the batch. On an error the reply is left as it was.
func (r *respReader) reply(i int, reply *bench.Reply) error {
	kind, line, err := r.line()
	if err != nil {
		return err
	}
	switch kind {
	case '+':
		*reply = bench.Reply{}
		r.spans = append(r.spans, span{i, r.r - len(line) - 2, r.r - 2})
	case '-':
		*reply = bench.Reply{Err: replyError(line)}
	case ':':
		n, err := parseInt(line)
		if err != nil {
			return err
		}
		*reply = bench.Reply{Int: n}
	case '$':
		n, err := parseLen(line, maxBulk)
		if err != nil {
			return err
		}
		if n < 0 {
			*reply = bench.Reply{Nil: true}
			return nil
		}
		if err := r.bulk(n); err != nil {
			return err
		}
		*reply = bench.Reply{}
		r.spans = append(r.spans, span{i, r.r - n - 2, r.r - 2})
	case '*':
		n, err := parseLen(line, maxBulk)
		if err != nil {
			return err
		}
		if n < 0 {
			*reply = bench.Reply{Nil: true}
			return nil
		}
		nils, err := r.skip(n, 1)
		if err != nil {
			return err
		}
		*reply = bench.Reply{Len: n, Nils: nils}
	default:
		return fmt.Errorf("protocol: reply of unknown type %q", kind)
	}
	return nil
}

// skip reads n elements of an array that is depth arrays deep, and counts those that are null.
func (r *respReader) skip(n, depth int) (nils int, err error) {
	if depth > maxDepth {
		return 0, fmt.Errorf("protocol: arrays nested deeper than %d", maxDepth)
	}
	for range n {
		kind, line, err := r.line()
		if err != nil {
			return nils, err
		}
		switch kind {
		case '+', '-':
		case ':':
			_, err = parseInt(line)
		case '$':
			var size int
			if size, err = parseLen(line, maxBulk); err == nil && size >= 0 {
				err = r.bulk(size)
			} else if err == nil {
				nils++
			}
		case '*':
			var size int
			if size, err = parseLen(line, maxBulk); err == nil && size > 0 {
				_, err = r.skip(size, depth+1)
			} else if err == nil && size < 0 {
				nils++
			}
		default:
			err = fmt.Errorf("protocol: element of unknown type %q", kind)
		}
		if err != nil {
			return nils, err
		}
	}
	return nils, nil
}

// line reads a line and returns its first byte and the rest, valid until more is read.
func (r *respReader) line() (kind byte, rest []byte, err error) {
	seen := 0
	for {
		if i := bytes.IndexByte(r.buf[r.r+seen:r.w], '\n'); i >= 0 {
			line := r.buf[r.r : r.r+seen+i]
			if len(line) < 2 || line[len(line)-1] != '\r' {
				return 0, nil, fmt.Errorf("protocol: malformed line %.32q", line)
			}
			r.r += seen + i + 1
			return line[0], line[1 : len(line)-1], nil
		}
		seen = r.w - r.r
		if seen > maxLine {
			return 0, nil, fmt.Errorf("protocol: line longer than %d bytes", maxLine)
		}
		if err := r.more(0); err != nil {
			return 0, nil, err
		}
	}
}

// bulk reads n bytes and the line's end.
func (r *respReader) bulk(n int) error {
	for r.w-r.r < n+2 {
		if err := r.more(n + 2); err != nil {
			return err
		}
	}
	r.r += n + 2
	if r.buf[r.r-2] != '\r' || r.buf[r.r-1] != '\n' {
		return errors.New("protocol: string longer than its length")
	}
	return nil
}

// more reads some bytes of what is known to be want bytes from r.r on. The buffer doubles at most, whatever the server
// announces, so that it grows only with what has arrived.
func (r *respReader) more(want int) error {
	if r.w == len(r.buf) {
		if len(r.spans) == 0 && r.r > 0 { // nothing that was read is still needed
			copy(r.buf, r.buf[r.r:r.w])
			r.r, r.w = 0, r.w-r.r
		}
		if r.w > len(r.buf)/2 || r.w == len(r.buf) {
			size := max(2*len(r.buf), chunk)
			if exact := r.r + want; exact > len(r.buf) && exact < size {
				size = max(exact, len(r.buf)+chunk)
			}
			buf := make([]byte, size)
			copy(buf, r.buf[:r.w])
			r.buf = buf
		}
	}
	n, err := r.fill(r.buf[r.w:])
	if n > 0 {
		r.w += n
		return nil
	}
	if err == nil || err == io.EOF {
		err = io.ErrUnexpectedEOF // a reply is always due here
	}
	return err
}

// parseInt is strconv.ParseInt without its allocation.
func parseInt(b []byte) (int64, error) {
	digits, negative := b, false
	if len(b) > 0 && (b[0] == '-' || b[0] == '+') {
		digits, negative = b[1:], b[0] == '-'
	}
	if len(digits) == 0 || len(digits) > 18 {
		n, err := strconv.ParseInt(string(b), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("protocol: malformed number %.32q", b)
		}
		return n, nil
	}
	var n int64
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, fmt.Errorf("protocol: malformed number %.32q", b)
		}
		n = 10*n + int64(c-'0')
	}
	if negative {
		n = -n
	}
	return n, nil
}

// parseLen returns the length in b, -1 for the null reply.
func parseLen(b []byte, limit int64) (int, error) {
	n, err := parseInt(b)
	if err != nil {
		return 0, err
	}
	if n < -1 || n > limit {
		return 0, fmt.Errorf("protocol: length %d", n)
	}
	return int(n), nil
}

// appendCommand appends cmd as a client sends it.
func appendCommand(b []byte, cmd bench.Cmd) []byte {
	b = appendHead(b, '*', len(cmd))
	for _, arg := range cmd {
		b = appendBulk(b, arg)
	}
	return b
}

func appendBulk[T string | []byte](b []byte, s T) []byte {
	b = appendHead(b, '$', len(s))
	b = append(b, s...)
	return append(b, '\r', '\n')
}

func appendHead(b []byte, kind byte, n int) []byte {
	b = append(b, kind)
	b = strconv.AppendInt(b, int64(n), 10)
	return append(b, '\r', '\n')
}
