"""How a fleet's machines reach each other: links, what engines are told of them, ports."""
