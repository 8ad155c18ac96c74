package profile

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"

	pprof "github.com/google/pprof/profile"
)

// MaxProfile bounds a profile, in bytes, both packed and unpacked.
const MaxProfile = 256 << 20

// maxFrames bounds a stack: a call graph is walked by recursion, as deep as it is.
const maxFrames = 4096

// Read reads a profile in pprof's form, with or without gzip. Its error
// describes the fault in the profile.
func Read(b []byte) (*pprof.Profile, error) {
	if bytes.HasPrefix(b, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(bytes.NewReader(b))
		if err != nil {
			return nil, err
		}
		if b, err = io.ReadAll(io.LimitReader(z, MaxProfile+1)); err != nil {
			return nil, fmt.Errorf("unpacking it: %w", err)
		}
		if len(b) > MaxProfile {
			return nil, fmt.Errorf("it unpacks to more than %d MiB", MaxProfile>>20)
		}
	}
	p, err := pprof.ParseUncompressed(b)
	if err != nil {
		return nil, err
	}
	if len(p.SampleType) == 0 {
		return nil, errors.New("its samples have no values")
	}
	if err := p.CheckValid(); err != nil {
		return nil, err
	}
	for _, s := range p.Sample {
		n := 0
		for _, l := range s.Location {
			n += max(1, len(l.Line))
		}
		if n > maxFrames {
			return nil, fmt.Errorf("a stack has %d functions, at most %d", n, maxFrames)
		}
	}
	return p, nil
}
