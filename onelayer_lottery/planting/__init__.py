"""Turn a stock fairseq model into a masked one, or its layers into reservoirs."""
