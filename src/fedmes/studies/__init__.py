"""The paper's studies, and those it leaves open, as defined runs with tables and figures."""
