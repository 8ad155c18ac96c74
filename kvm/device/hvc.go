package device

// hvc is the console device with one port (Virtio 1.2, 5.3), which Linux calls hvc0.
type hvc struct {
	output func([]byte)
	input  input
}

// The console's queues.
const (
	hvcReceive = 0
	hvcSend    = 1
)

func (*hvc) kind() uint32     { return 3 }
func (*hvc) features() uint64 { return 0 }
func (*hvc) queues() int      { return 2 }
func (*hvc) config() []byte   { return nil }
func (*hvc) close() error     { return nil }

func (h *hvc) serve(queue int, c *chain, _ uint64) (written uint32, done bool) {
	if queue == hvcSend {
		for _, b := range c.out {
			if h.output != nil {
				h.output(b)
			}
		}
		return 0, true
	}
	if !h.input.waiting() {
		return 0, false
	}
	for _, b := range c.in {
		written += uint32(h.input.take(b))
	}
	return written, true
}
