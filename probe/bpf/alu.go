package bpf

import "math"

// Division never traps (RFC 9669, section 4.1): division by zero gives zero, a
// remainder by zero is the dividend, and the one quotient that overflows wraps.

func div64(a, b uint64) uint64 {
	if b == 0 {
		return 0
	}
	return a / b
}

func mod64(a, b uint64) uint64 {
	if b == 0 {
		return a
	}
	return a % b
}

func div32(a, b uint32) uint32 {
	if b == 0 {
		return 0
	}
	return a / b
}

func mod32(a, b uint32) uint32 {
	if b == 0 {
		return a
	}
	return a % b
}

func sdiv64(a, b uint64) uint64 {
	switch x, y := int64(a), int64(b); {
	case y == 0:
		return 0
	case y == -1 && x == math.MinInt64:
		return a
	default:
		return uint64(x / y)
	}
}

func smod64(a, b uint64) uint64 {
	switch x, y := int64(a), int64(b); {
	case y == 0:
		return a
	case y == -1:
		return 0
	default:
		return uint64(x % y)
	}
}

func sdiv32(a, b uint32) uint32 {
	switch x, y := int32(a), int32(b); {
	case y == 0:
		return 0
	case y == -1 && x == math.MinInt32:
		return a
	default:
		return uint32(x / y)
	}
}

func smod32(a, b uint32) uint32 {
	switch x, y := int32(a), int32(b); {
	case y == 0:
		return a
	case y == -1:
		return 0
	default:
		return uint32(x % y)
	}
}
