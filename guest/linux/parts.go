package linux

// Parts is guest.SymbolTable.Parts, for the kernel's own symbols.
func (v *View) Parts(name string) []string {
	if pieces := v.now.Load().pieces; len(pieces) > 0 {
		return pieces[0].Parts(name)
	}
	return nil
}
