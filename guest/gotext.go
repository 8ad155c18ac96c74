package guest

// goSections and goBounds identify a Go program, and its bounds in an image that
// contains more.
var (
	goSections = []string{".gopclntab", ".data.rel.ro.gopclntab"}
	goBounds   = [2]string{"runtime.text", "runtime.etext"}
)

// WalksStacks names the runtime that looks up every return address on the stacks of
// the code at addr, and ends the program if it does not know one; "" if there is no
// such runtime. Go's does when it grows a stack, and when it collects garbage
// (runtime.copystack, scanstack).
func (img *Image) WalksStacks(addr GVA) string {
	if !img.hasGo() {
		return ""
	}
	var at [2]GVA
	for i, name := range goBounds {
		s, err := img.Lookup(name)
		if err != nil {
			return "Go" // without its symbols, the whole image
		}
		at[i] = s.Addr
	}
	if addr-at[0] < at[1]-at[0] {
		return "Go"
	}
	return ""
}

func (img *Image) hasGo() bool {
	for _, name := range goSections {
		if len(img.sections(name)) != 0 {
			return true
		}
	}
	_, err := img.Lookup("runtime.pclntab")
	return err == nil
}
