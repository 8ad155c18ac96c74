package device

import "encoding/binary"

// This file writes the part of ACPI's machine language that a table of devices
// needs (ACPI 6.5, 20.2), and resource descriptors (6.4). Each function returns
// one term.

// Opcodes.
const (
	amlZero    = 0x00
	amlOne     = 0x01
	amlName    = 0x08
	amlByte    = 0x0a
	amlWord    = 0x0b
	amlDword   = 0x0c
	amlString  = 0x0d
	amlScope   = 0x10
	amlBuffer  = 0x11
	amlPackage = 0x12
	amlExt     = 0x5b
	amlDevice  = 0x82 // after amlExt
)

// appendSized puts op and the length of all that follows op before body (20.2.4).
func appendSized(op []byte, body []byte) []byte {
	out := append([]byte{}, op...)
	// The length includes its own bytes: one for less than 64, else the number of
	// further bytes in the first one's top bits.
	if n := len(body) + 1; n < 0x40 {
		return append(append(out, byte(n)), body...)
	}
	more := 1
	for len(body)+1+more >= 1<<(4+8*more) {
		more++
	}
	n := len(body) + 1 + more
	out = append(out, byte(more<<6|n&0xf))
	for n >>= 4; more > 0; more-- {
		out = append(out, byte(n))
		n >>= 8
	}
	return append(out, body...)
}

func amlInt(n uint32) []byte {
	switch {
	case n == 0:
		return []byte{amlZero}
	case n == 1:
		return []byte{amlOne}
	case n < 1<<8:
		return []byte{amlByte, byte(n)}
	case n < 1<<16:
		return binary.LittleEndian.AppendUint16([]byte{amlWord}, uint16(n))
	}
	return binary.LittleEndian.AppendUint32([]byte{amlDword}, n)
}

func amlText(s string) []byte { return append(append([]byte{amlString}, s...), 0) }

// amlEISA returns an identifier of three letters and four hexadecimal digits as a number (19.3.4).
func amlEISA(id string) []byte {
	var n uint32
	for i := range 3 {
		n = n<<5 | uint32(id[i]-'A'+1)
	}
	for _, c := range []byte(id[3:]) {
		d := uint32(c - '0')
		if c >= 'A' {
			d = uint32(c-'A') + 10
		}
		n = n<<4 | d
	}
	return binary.BigEndian.AppendUint32([]byte{amlDword}, n)
}

// amlNamed gives a value a name of four characters.
func amlNamed(name string, value []byte) []byte {
	return append(append([]byte{amlName}, name...), value...)
}

func amlList(elements ...[]byte) []byte {
	return appendSized([]byte{amlPackage}, append([]byte{byte(len(elements))}, join(elements)...))
}

func amlScoped(path string, terms ...[]byte) []byte {
	return appendSized([]byte{amlScope}, append([]byte(path), join(terms)...))
}

func amlDev(name string, terms ...[]byte) []byte {
	return appendSized([]byte{amlExt, amlDevice}, append([]byte(name), join(terms)...))
}

// amlResources is a buffer of resource descriptors with the end tag. The tag's
// checksum is 0, which means that it is not used.
func amlResources(descriptors ...[]byte) []byte {
	b := append(join(descriptors), 0x79, 0)
	return appendSized([]byte{amlBuffer}, append(amlInt(uint32(len(b))), b...))
}

// resPorts is n ports from at on, decoded by 16 bits (6.4.2.5).
func resPorts(at uint16, n byte) []byte {
	b := []byte{0x47, 1}
	b = binary.LittleEndian.AppendUint16(b, at)
	b = binary.LittleEndian.AppendUint16(b, at)
	return append(b, 1, n)
}

// resIRQ is an interrupt line of the ISA bus, which counts rises (6.4.2.1).
func resIRQ(n byte) []byte { return binary.LittleEndian.AppendUint16([]byte{0x22}, 1<<n) }

// resMemory is a window of physical memory that can be written (6.4.3.4).
func resMemory(at, size uint32) []byte {
	b := []byte{0x86, 9, 0, 1}
	b = binary.LittleEndian.AppendUint32(b, at)
	return binary.LittleEndian.AppendUint32(b, size)
}

// resInterrupt is an interrupt line of the I/O APIC whose high level counts, and which a device consumes
// (6.4.3.6).
func resInterrupt(n uint32) []byte {
	return binary.LittleEndian.AppendUint32([]byte{0x89, 6, 0, 1, 1}, n)
}

func join(parts [][]byte) []byte {
	var out []byte
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}
