package api

// Disas answers GET /v1/disas: one function of the image, instruction by
// instruction, with what a probe on each would be. It is made from the image, so
// that no probe shows in it.
type Disas struct {
	Symbol    string      `json:"symbol"`
	Addr      Hex         `json:"addr"`
	Size      uint64      `json:"size"`      // bytes, without the padding behind
	Offset    uint64      `json:"offset"`    // of what was asked for
	User      bool        `json:"user"`      // runs at CPL3
	Blacklist string      `json:"blacklist"` // why none of it may be probed; empty when it may
	Insts     []DisasInst `json:"insts"`
	// Undecodable says why the list ends before the function does; empty when
	// it does not.
	Undecodable string `json:"undecodable"`
}

// DisasInst is one instruction.
type DisasInst struct {
	Offset uint64 `json:"offset"`
	Addr   Hex    `json:"addr"`
	Bytes  string `json:"bytes"`            // hexadecimal
	Text   string `json:"text"`             // GNU syntax; empty for what is too new for the printer
	Source string `json:"source,omitempty"` // FILE:LINE, where lines were asked for and it is known
	Class  string `json:"class"`            // of control flow: other, jump, call ...
	Kind   string `json:"kind"`             // how it is run behind a probe: emulate, boost, in_place or refused
	Reason string `json:"reason,omitempty"` // why in_place or refused
	NoPost bool   `json:"noPost,omitempty"` // no post handler can be served
	// Table are where an indirect jump leads, when its jump table was found.
	Table  []Hex       `json:"table,omitempty"`
	Ours   DisasRegion `json:"ours"`   // what a jump here would displace
	Kernel DisasRegion `json:"kernel"` // and by the rules of Linux

	Probes []DisasProbe `json:"probes,omitempty"` // that are attached there
}

// DisasProbe is a probe on an instruction.
type DisasProbe struct {
	Name   string `json:"name"`
	How    string `json:"how"` // none, int3, jump, or program: a jump to handlers in the guest
	Hits   uint64 `json:"hits"`
	Region int    `json:"region,omitempty"` // bytes that its jump displaces
}

// DisasRegion is the answer to whether a site can be a jump.
type DisasRegion struct {
	Length     int    `json:"length"`               // bytes that the jump displaces, 5 to 19; 0 when there can be none
	Boundaries []int  `json:"boundaries,omitempty"` // where in its first 5 bytes old instructions begin
	Reason     string `json:"reason,omitempty"`     // why there can be none
	At         *int64 `json:"at,omitempty"`         // offset of the instruction that is in the way, in the function
	Detail     string `json:"detail,omitempty"`
}
