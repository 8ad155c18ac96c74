package device

import "testing"

// FuzzPorts has a hostile guest touch any port in any width and order: nothing panics, and what no
// device answers is all ones.
func FuzzPorts(f *testing.F) {
	f.Add([]byte{0xf8, 0x03, 1, 'x', 0xf9, 0x03, 0x81, 0})
	f.Add([]byte{0x04, 0x06, 2, 0, 0x34, 0xff, 0x03, 4, 1, 2, 3, 4})
	f.Fuzz(func(t *testing.T, b []byte) {
		p, _ := board(t, func(c *Config) {
			c.Serial = func([]byte) {}
			c.PowerOff, c.Reset = func() {}, func() {}
		})
		for len(b) > 3 {
			port, size := uint16(b[0])|uint16(b[1])<<8, 1<<(b[2]&3)
			read := b[2]&0x80 != 0
			size = min(size, 4)
			b = b[3:]
			data := make([]byte, size)
			n := copy(data, b)
			if !read {
				p.Out(port, data)
				b = b[n:]
				continue
			}
			if !p.In(port, data) {
				for _, x := range data {
					if x != 0xff {
						t.Fatalf("port %#x of nobody reads as % x", port, data)
					}
				}
			}
		}
	})
}
