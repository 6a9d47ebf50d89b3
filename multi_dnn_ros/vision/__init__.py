"""Images in and results out, no DNN: messages to arrays, preprocessing, decoders, result kinds, drawing."""
