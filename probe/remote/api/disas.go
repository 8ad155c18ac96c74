package api

// Disas answers GET /v1/disas: one function of the image, instruction by instruction, with the kind of probe that each
// would get. It is made from the image, so that no probe shows in it.
type Disas struct {
	Symbol      string      `json:"symbol"`
	Addr        Hex         `json:"addr"`
	Size        uint64      `json:"size"`      // in bytes, without the padding after the function
	Offset      uint64      `json:"offset"`    // of the address that was asked for
	User        bool        `json:"user"`      // runs at CPL3
	Blacklist   string      `json:"blacklist"` // why none of it may be probed; empty when it may
	Insts       []DisasInst `json:"insts"`
	Undecodable string      `json:"undecodable"` // why the list ends before the function does; empty when it does not
}

// DisasInst is one instruction.
type DisasInst struct {
	Offset uint64      `json:"offset"`
	Addr   Hex         `json:"addr"`
	Bytes  string      `json:"bytes"`                                              // hexadecimal
	Text   string      `json:"text"`                                               // GNU syntax; empty if the instruction is too new for the printer
	Source string      `json:"source,omitempty"`                                   // FILE:LINE, where lines were asked for and it is known
	Class  string      `json:"class"`                                              // of control flow: other, jump, call and so on
	Kind   string      `json:"kind" openapi:"enum=emulate|boost|in_place|refused"` // how a probe runs the instruction: emulate, boost, in_place or refused
	Reason string      `json:"reason,omitempty"`                                   // why in_place or refused
	NoPost bool        `json:"noPost,omitempty"`                                   // no post handler can be served
	Table  []Hex       `json:"table,omitempty"`                                    // the targets of an indirect jump, if its jump table was found
	Ours   DisasRegion `json:"ours"`                                               // what a jump here would displace
	Kernel DisasRegion `json:"kernel"`                                             // the same by the rules of Linux

	Probes []DisasProbe `json:"probes,omitempty"` // that are attached to it
}

// DisasProbe is a probe on an instruction.
type DisasProbe struct {
	Name   string `json:"name"`
	How    string `json:"how"` // none, int3, jump, or program: a jump to handlers in the guest
	Hits   uint64 `json:"hits"`
	Region int    `json:"region,omitempty"` // bytes that its jump displaces
}

// DisasRegion says whether a probe here can be a jump to a detour, and which bytes that displaces.
type DisasRegion struct {
	Length     int    `json:"length"`               // bytes that the jump displaces, 5 to 19; 0 when there can be none
	Boundaries []int  `json:"boundaries,omitempty"` // where in its first 5 bytes old instructions begin
	Reason     string `json:"reason,omitempty"`     // why there can be none
	At         *int64 `json:"at,omitempty"`         // offset in the function of the instruction that prevents the jump
	Detail     string `json:"detail,omitempty"`
}
