//go:build !unix

package diagnose

import "errors"

func newPair() (*pair, error) { return nil, errors.ErrUnsupported }
