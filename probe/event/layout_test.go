package event

import (
	"slices"
	"testing"
)

// TestStackArgs wants the arguments that a return needs from the stack of the entry,
// each once.
func TestStackArgs(t *testing.T) {
	for def, want := range map[string][]int{
		"p vfs_read $arg7": nil, "r vfs_read $arg1 $arg6": nil, "r vfs_read $arg9 +8(+0($arg7)) $arg9:u8 $arg1": {7, 9},
	} {
		if got := compile(t, def, Options{}).StackArgs(); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", def, got, want)
		}
	}
}
