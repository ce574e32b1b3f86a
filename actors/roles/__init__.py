"""The roles of a pipeline, as plain classes that know neither Ray nor the network."""
