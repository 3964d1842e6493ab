"""Tool calls and structured output over three APIs, asked of both arms and compared as parsed."""
