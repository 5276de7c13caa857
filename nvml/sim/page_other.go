//go:build !unix

package sim

import "errors"

func mapPage(string) ([]uint64, func() error, error) {
	return nil, nil, errors.New("map page: shared memory is not supported on this system")
}
