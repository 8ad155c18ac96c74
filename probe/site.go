package probe

// registration ties a Kprobe to its site.
type registration struct{}
