package guest

import (
	"errors"
	"fmt"
)

// ErrPagingMode is returned for a vCPU whose page tables are not those of
// 4-level paging.
var ErrPagingMode = errors.New("unsupported paging mode")

// CheckPaging returns nil when the control registers select 4-level paging,
// the one mode that an AddressSpace walks, and otherwise an error that names the
// mode and wraps ErrPagingMode (SDM Vol. 3, 4.1.1).
func CheckPaging(cr0, cr4, efer uint64) error {
	const (
		cr0PG   = 1 << 31
		cr4PAE  = 1 << 5
		cr4LA57 = 1 << 12
		eferLMA = 1 << 10
	)
	mode := ""
	switch {
	case cr0&cr0PG == 0:
		mode = "no paging"
	case cr4&cr4PAE == 0:
		mode = "32-bit paging"
	case efer&eferLMA == 0:
		mode = "PAE paging"
	case cr4&cr4LA57 != 0:
		mode = "5-level paging"
	default:
		return nil
	}
	return fmt.Errorf("%w: %s instead of 4-level paging", ErrPagingMode, mode)
}
