package api

// VariableList answers GET /v1/variables: the places of the code that were asked about.
type VariableList struct {
	Places []VariablePlace `json:"places"`
	More   bool            `json:"more"` // there are more places
}

// VariablePlace is a place of the code with the variables in scope there.
type VariablePlace struct {
	Addr      Hex        `json:"addr"`
	Symbol    string     `json:"symbol"`
	Source    string     `json:"source,omitempty"` // FILE:LINE
	Variables []Variable `json:"variables"`        // the innermost first
}

// Variable is a variable or a parameter. One of Where and Why is set.
type Variable struct {
	Name      string `json:"name"`
	Type      string `json:"type"`            // as C writes it
	Function  string `json:"function"`        // to which it belongs, which may be inlined here
	Parameter bool   `json:"parameter"`       // of that function
	Where     string `json:"where,omitempty"` // as definitions write it: %di, +16(%sp), @symbol; REGISTER+NUMBER is a sum
	Why       string `json:"why,omitempty"`   // instead of Where: why its value is not available
}
