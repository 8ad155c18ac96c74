package linux

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// errLZ4 is wrapped by errors about damaged streams.
var errLZ4 = errors.New("damaged lz4 stream")

// lz4Block is the most bytes in a block of a legacy stream.
const lz4Block = 8 << 20

// lz4 reads the legacy LZ4 frame, the format of packed Linux kernels: a magic number,
// then blocks of up to 8 MiB, each preceded by its compressed size (LZ4 Frame Format
// Description, "Legacy frame").
type lz4 struct {
	r     *bufio.Reader
	begun bool
	out   []byte // of the current block
	at    int
	in    []byte
}

func newLZ4(r io.Reader) *lz4 { return &lz4{r: bufio.NewReader(r)} }

// Read returns bytes of the current block, or of the next one.
func (z *lz4) Read(p []byte) (int, error) {
	for z.at == len(z.out) {
		if err := z.next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, z.out[z.at:])
	z.at += n
	return n, nil
}

// next decodes one block.
func (z *lz4) next() error {
	var word [4]byte
	for {
		if _, err := io.ReadFull(z.r, word[:]); err != nil {
			if z.begun && errors.Is(err, io.EOF) {
				return io.EOF
			}
			return fmt.Errorf("%w: %w", errLZ4, err)
		}
		// A magic number may occur between blocks: another frame follows.
		if string(word[:]) != "\x02\x21\x4c\x18" {
			break
		}
		z.begun = true
	}
	n := binary.LittleEndian.Uint32(word[:])
	if !z.begun || n == 0 || n > lz4Block+lz4Block/255+16 {
		return fmt.Errorf("%w: block of %d bytes", errLZ4, n)
	}
	if cap(z.in) < int(n) {
		z.in = make([]byte, n)
	}
	z.in = z.in[:n]
	if _, err := io.ReadFull(z.r, z.in); err != nil {
		return fmt.Errorf("%w: %w", errLZ4, err)
	}
	var err error
	z.out, err = decodeLZ4(z.out[:0], z.in)
	z.at = 0
	return err
}

// decodeLZ4 appends to dst, which is empty, the decoded block b (LZ4 Block Format
// Description): sequences of literals and a copy of earlier output.
func decodeLZ4(dst, b []byte) ([]byte, error) {
	length := func(n int) (int, bool) {
		if n != 15 {
			return n, true
		}
		for len(b) > 0 {
			c := b[0]
			b = b[1:]
			n += int(c)
			if n > lz4Block {
				return 0, false
			}
			if c != 255 {
				return n, true
			}
		}
		return 0, false
	}
	for len(b) > 0 {
		token := b[0]
		b = b[1:]
		n, ok := length(int(token >> 4))
		if !ok || n > len(b) || len(dst)+n > lz4Block {
			return nil, fmt.Errorf("%w: literals", errLZ4)
		}
		dst = append(dst, b[:n]...)
		if b = b[n:]; len(b) == 0 {
			return dst, nil // the last sequence has only literals
		}
		if len(b) < 2 {
			return nil, fmt.Errorf("%w: offset", errLZ4)
		}
		back := int(b[0]) | int(b[1])<<8
		b = b[2:]
		n, ok = length(int(token & 15))
		n += 4
		if !ok || back == 0 || back > len(dst) || len(dst)+n > lz4Block {
			return nil, fmt.Errorf("%w: copy", errLZ4)
		}
		for ; n > 0; n-- { // may overlap
			dst = append(dst, dst[len(dst)-back])
		}
	}
	return nil, fmt.Errorf("%w: no last literals", errLZ4)
}
