package api

import (
	"fmt"
	"strconv"
)

// Hex is an address or a register value. On the wire it is a string of 0x and
// 16 hexadecimal digits, because a JSON number loses bits above 2^53 in most
// readers. Requests may have any number of 64 bits, in decimal or with a prefix such
// as 0x.
type Hex uint64

// String returns the wire form.
func (h Hex) String() string { return fmt.Sprintf("0x%016x", uint64(h)) }

// MarshalText returns the wire form.
func (h Hex) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText accepts what strconv.ParseUint accepts with base 0: 0x…, 0o…,
// 0b… or decimal.
func (h *Hex) UnmarshalText(b []byte) error {
	v, err := strconv.ParseUint(string(b), 0, 64)
	if err != nil {
		return fmt.Errorf("%q is no number of 64 bits, such as 0x1f or 31", b)
	}
	*h = Hex(v)
	return nil
}
