"""Tool calls and structured output over three APIs, parsed and compared between both arms."""
