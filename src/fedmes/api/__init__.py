"""What `import fedmes` offers: runs from Python and notebooks, and results that show themselves."""
