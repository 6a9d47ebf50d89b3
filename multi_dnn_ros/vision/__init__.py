"""Images and results without DNNs: messages to arrays, preprocessing, decoders, result kinds, drawing."""
