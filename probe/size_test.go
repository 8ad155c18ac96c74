package probe

import "unsafe"

// Sizes that keep vCPUs apart.
const (
	cellSize = unsafe.Sizeof(cell{})
	// Between the last field of one vCPU that is written and the first of the next.
	cpuTail = unsafe.Sizeof(cpu{}) - unsafe.Offsetof(cpu{}.counts) - unsafe.Sizeof(cpuCounts{}) + unsafe.Offsetof(cpu{}.id)
)
