// Package types reads a guest's types from BTF: the prototypes of its functions, the
// members of its structures, and either as C text.
package types
