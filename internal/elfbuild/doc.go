// Package elfbuild writes the ELF files of guests that tests make up.
package elfbuild
