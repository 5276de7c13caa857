package libnvml

import "slices"

// Optional returns the functions that a driver may lack.
func Optional() []string { return slices.Clone(optional) }
