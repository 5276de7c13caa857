package host

// ParsePressure is the decoder of pressure files.
func ParsePressure(text []byte) (float64, error) { return parsePressure(text) }
